"""Adapters to engines: what an engine imports to use mmx.

    vllm_ec      an encoder-cache connector for vLLM, by module path
    sglang_fork  the objects of the SGLang fork with embedding transfer

They import without the engine: its base classes where they are there, else
stand-ins with the same signatures. lib/client/README.md is the guide.
"""
