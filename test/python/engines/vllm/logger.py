"""Stands in for vLLM's module of this name where vLLM is not installed: it
prints only lines of loggers whose names begin with vLLM's."""

import logging


def init_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)
