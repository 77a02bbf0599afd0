"""The agent: one node's parent of workers.

policy       PURE: (state, event) -> (state, actions, reason); every decision is there
events       PURE: the nouns of policy, what happens and what is done
environment  PURE: what a worker finds in its environment
processes    starts workers, tells their exits, stops their whole trees
guard        a helper process that ends the workers if the agent itself is killed
handlers     what the agent asks of a rendezvous handler
output       where the workers' stdout and stderr go
report       the words: failures at the end, one line at a time while waiting
agent        the loop: one queue of events in, the policy's actions out
"""
