"""Whether a node is fit to take part: its machine, and its links to server and peers.

judgement  PURE: what was measured, and what it means
machine    measures this machine: disk, memory, clock, GPUs
pairs      measures the links between nodes, each to each
"""
