"""Forks SGLang's servers from one process that has imported SGLang: each import
takes half a minute of a core, and a server has three processes. The lines of
the README do not use it, and start servers of their own.

Reads {"args": [...], "env": {...}, "log": path} by line, answers each with
the process id. Servers end with it."""

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import traceback

multiprocessing.set_start_method("fork", force=True)
_get = multiprocessing.get_context
multiprocessing.get_context = lambda method=None: _get("fork")
multiprocessing.set_start_method = lambda *_, **__: None

import torch  # noqa: E402

torch.set_num_threads(1)
torch.multiprocessing.set_start_method = lambda *_, **__: None
torch.multiprocessing.get_context = lambda method=None: _get("fork")

import sglang.launch_server  # noqa: E402
import sglang.srt.disaggregation.encoder.http_server  # noqa: E402,F401
import sglang.srt.entrypoints.http_server  # noqa: E402,F401
import sglang.srt.managers.detokenizer_manager  # noqa: E402,F401
import sglang.srt.managers.scheduler  # noqa: E402,F401
import sglang.srt.models.qwen2_vl  # noqa: E402,F401
from sglang.srt.managers import multimodal_processor  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402

import timed  # noqa: E402


def one_processor():
    """Leaves out the processors of all other models."""
    every = multimodal_processor.import_processors
    made = multimodal_processor.PROCESSOR_MAPPING
    from sglang.srt.multimodal.processors import qwen_vl

    def only(*_, **__):
        for c in vars(qwen_vl).values():
            if isinstance(c, type) and c.__module__ == qwen_vl.__name__:
                made.update({a: c for a in getattr(c, "models", ())})
    for m in list(sys.modules.values()):
        if getattr(m, "import_processors", None) is every:
            m.import_processors = only


def pickled_modality():
    """Pickles an enum as later Pythons do: 3.11.2 does it by getattr, which
    SGLang's reader of zmq_to_scheduler refuses."""
    from sglang.srt.managers.schedule_batch import Modality

    if sys.version_info < (3, 11, 4):
        Modality.__reduce_ex__ = lambda self, _: (Modality, (self.value,))


def padded_batches():
    """Adds what SGLang's attention on a CPU lacks for attention data
    parallelism: the length of a place without a request."""
    from sglang.srt.layers.attention import torch_native_backend as native

    native.TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = \
        lambda self: 1


def memory_of_hosts():
    """On a CPU SGLang's KV cache is in host memory, but SGLang tells NIXL that
    a GPU has it, and CUDA to pin it. This mends both."""
    from sglang.srt.mem_cache.pool_host import common

    common._cuda_host_register = lambda *_: None
    try:
        from nixl._api import nixl_agent
    except ImportError:
        return  # part pd installs it

    def told(call):
        def of_host(self, *args, **more):
            return call(self, *("DRAM" if isinstance(a, str) and a == "VRAM"
                                else a for a in args), **more)
        return of_host
    for name in ("get_reg_descs", "get_xfer_descs", "prep_xfer_dlist",
                 "register_memory"):
        setattr(nixl_agent, name, told(getattr(nixl_agent, name)))


def end_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def serve(args, env, log):
    end_with_parent()
    os.setsid()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for to in (1, 2):
        os.dup2(fd, to)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(env)
    try:
        from sglang.srt.server_args import prepare_server_args

        sglang.launch_server.run_server(prepare_server_args(args))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def main():
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    one_processor()
    pickled_modality()
    padded_batches()
    memory_of_hosts()
    load_plugins()
    timed.install()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            serve(**json.loads(line))
        print(pid, file=answers, flush=True)
        while True:  # collects processes that have ended
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break


if __name__ == "__main__":
    main()
