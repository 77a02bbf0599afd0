from rallypoint.integrations.ports import COUNT, FIRST, port_of


def test_port_of_a_job_is_below_the_ephemeral_range() -> None:
    ports = [port_of(f"job-{number}") for number in range(1000)]
    assert ports == [port_of(f"job-{number}") for number in range(1000)]
    assert min(ports) >= FIRST
    assert max(ports) < FIRST + COUNT <= 32768
    assert len(set(ports)) > 900
