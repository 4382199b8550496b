"""Stands in for SGLang 0.5.23's module of this name where it is not
installed: `servicer` has Encode() and Check()
of (request, context)."""

import stand_in_grpc as grpc


def add_SGLangEncoderServicer_to_server(servicer, server):
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
        "sglang.grpc.encoder.SglangEncoder",
        {"Encode": grpc.unary_unary_rpc_method_handler(servicer.Encode)}),
        grpc.method_handlers_generic_handler("grpc.health.v1.Health", {
            "Check": grpc.unary_unary_rpc_method_handler(servicer.Check)})))
