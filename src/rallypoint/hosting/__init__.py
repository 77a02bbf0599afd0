"""Starting a server: in this process, as a process of its own, or again later."""
