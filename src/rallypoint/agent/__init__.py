"""The agent: one node's parent of workers.

What is decided, all of it PURE:
policy       (state, event) -> (state, actions, reason)
admission    its part about nodes that come and go while workers are at work
verdicts     its part about the end: exit codes
backoff      its part about pauses
events       the nouns of policy, what happens and what is done
environment  what a worker finds in its environment
words        what a node that waits says
records      what the log of events says

What carries it out:
agent        the loop: one queue of events in, the policy's actions out
config       what an agent is asked to run
joining      asks for a round, once the checkup (checkup) lets it
crew         this node's workers, round after round
processes    starts workers, tells their exits, stops them
tree         finds all that came from them, wherever it is
guard        a helper process that ends them if the agent itself is killed
hangs        workers that stand still
changes      tells workers of changes, and hears that they have saved
signals      signals as events
handlers     what the agent asks of a rendezvous handler
farewell     the last words to the coordinator
output       where the workers' stdout and stderr go (pump, logfile)
report       what the agent itself says (waiting: while a join lasts)
journal      events as JSON lines and to handlers
endpoint     health over HTTP
"""
