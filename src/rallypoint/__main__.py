"""`python -m rallypoint`."""

from rallypoint.cli import main

if __name__ == "__main__":
    main(prog_name="rallypoint")
