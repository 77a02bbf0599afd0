"""What a client and a server share: addresses, connections, the handshake, and the wire format."""
