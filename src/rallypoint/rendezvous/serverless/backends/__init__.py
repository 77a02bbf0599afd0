"""Where a run's state is kept: one contract (`contract`), several homes."""
