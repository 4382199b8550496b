"""Adapters to engines: what an engine imports to use mmx.

    vllm_ec  an encoder-cache connector for vLLM, by module path
    sglang   a plugin of SGLang, which finds it by its entry point
    dynamo   starts Dynamo's workers with one more embedding transfer mode

They subclass the engine's own classes, so each needs its engine installed and
names it when it is not. lib/client/README.md is the guide.
"""
