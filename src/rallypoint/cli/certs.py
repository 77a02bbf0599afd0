"""`rallypoint certs`: make a private CA, and certificates for the nodes of a cluster."""

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from rallypoint.errors import ParameterError


@click.command("certs")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--name",
    "names",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Host name or address by which nodes reach the server; may be repeated.",
)
@click.option(
    "--days",
    type=click.IntRange(min=1),
    default=365,
    show_default=True,
    help="Days until the certificate expires (the CA: ten years).",
)
def command(folder: Path, names: tuple[str, ...], days: int) -> None:
    """Make a certificate for a node, signed by the private CA in FOLDER.

    The first call also makes the CA. Only this command needs its key, ca.key: do not copy it to
    the nodes.

    \b
    Example:
        rallypoint certs certs --name head --name 10.0.0.1
        rallypoint serve --bind 10.0.0.1:29400 --tls-cert certs/head.pem --tls-key certs/head.key
        RALLYPOINT_TLS_CA=certs/ca.pem rallypoint run --endpoint head:29400 ...
    """
    if find_spec("cryptography") is None:
        click.echo("rallypoint certs: needs an extra: pip install 'rallypoint[tls]'", err=True)
        sys.exit(1)
    from rallypoint.cli.private_ca import make_ca, make_certificate, places

    try:
        replaced = [str(path) for path in places(folder, names[0]) if path.exists()]
        ca = make_ca(folder)
        cert, key = make_certificate(folder, list(names), days)
    except (ParameterError, OSError, ValueError) as error:
        click.echo(f"rallypoint certs: {error}", err=True)
        sys.exit(1)
    click.echo(f"CA           {ca}   (RALLYPOINT_TLS_CA on every node)")
    click.echo(f"certificate  {cert}   (--tls-cert)")
    click.echo(f"key          {key}   (--tls-key; keep it on this node)")
    click.echo(f"for          {', '.join(names)}, {days} days")
    if replaced:
        click.echo(f"replaced     {', '.join(replaced)}   (running servers load them)")
