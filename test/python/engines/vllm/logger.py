"""Stands in for vLLM's module of this name where vLLM is not installed: it
prints only what loggers under its own name say."""

import logging


def init_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)
