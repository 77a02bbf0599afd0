"""The agent: the parent process of one node's workers.

config         what an agent runs
loop           takes events from one queue, and carries out the policy's actions
policy/        decides: (state, event) -> (state, actions, reason). PURE
join/          joins a round with its health check, shows progress, reports and leaves
workers/       starts, watches and stops the worker processes
output         where the workers' stdout and stderr go
reporting/     what the agent prints and logs
signals        signals as events
health_server  health over HTTP
"""
