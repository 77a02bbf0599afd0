"""Why nodes do not meet: looks step by step, and says what to do.

`probe` asks the network, `findings` judges what was seen, `examination` goes from one
to the next.
"""
