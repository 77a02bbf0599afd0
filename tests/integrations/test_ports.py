from rallypoint.integrations.ports import COUNT, FIRST, port_of


def test_a_job_has_one_port_below_the_ephemeral_ones() -> None:
    ports = [port_of(f"job-{number}") for number in range(1000)]
    assert ports == [port_of(f"job-{number}") for number in range(1000)]
    assert min(ports) >= FIRST
    assert max(ports) < FIRST + COUNT <= 32768
    assert len(set(ports)) > 900
