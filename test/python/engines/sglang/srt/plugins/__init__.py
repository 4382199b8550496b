def load_plugins():
    from mmx.adapters import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry

    sglang.register()
    HookRegistry.apply_hooks()
