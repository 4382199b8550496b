"""Writes down when an encoder has staged the rows of a part, and when the
scheduler has all rows of a request, for mmx and for SGLang's
zmq_to_scheduler."""

import functools

from marks import note
from sglang.srt.disaggregation.encoder import receiver, server


def name(req_id):
    """Returns the client's request id."""
    return req_id.split("_local_part_")[0].split("~")[0]


def before(owner, method, call):
    original = getattr(owner, method)

    @functools.wraps(original)  # keeps the signature, which the adapter checks
    def with_note(self, *args, **more):
        call(self, *args)
        return original(self, *args, **more)
    setattr(owner, method, with_note)


def install():
    before(server.MMEncoder, "_stage_embedding",
           lambda _, data: note("encoded", name(data.req_id)))
    before(server.MMEncoder, "_stage_embedding_batch",
           lambda _, all_: [note("encoded", name(d.req_id)) for d in all_])
    before(receiver.WaitingMMRequestBase, "_finish_assemble",
           lambda self, *_: note("usable", self.rid))
