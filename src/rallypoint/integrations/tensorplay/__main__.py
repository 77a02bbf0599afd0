"""`python -m rallypoint.integrations.tensorplay`: TensorPlay's launcher, with our backend."""

from rallypoint.integrations.tensorplay import main

main()
