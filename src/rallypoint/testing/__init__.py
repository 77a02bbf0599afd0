"""Shipped helpers for tests: conformance suites, fakes, a manual clock, the simulator."""
