"""Record and replay: real exchanges in readable files, so that tests of agents run offline."""

from toolcrib.testing.tape.cassette import Cassette, Record, cassette

__all__ = ["Cassette", "Record", "cassette"]
