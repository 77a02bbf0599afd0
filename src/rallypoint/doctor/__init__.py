"""Finds out why nodes do not meet, and whether a node is fit to take part.

examination   the steps towards a server, one after the other
serverless    the same without a server: towards etcd, Redis or a file
probe         what the steps ask the network
findings      judges what the probe saw
measurements  measures this machine, and the links between nodes
fitness       PURE: judges the measurements
"""
