# SPDX-License-Identifier: Apache-2.0
"""Part of the fake of vLLM: the registry of backends."""
import abc
import importlib


class SleepModeBackend(abc.ABC):
    def __init__(self):
        self._state = "RUNNING"

    @abc.abstractmethod
    def suspend(self, level=1):
        raise NotImplementedError

    @abc.abstractmethod
    def resume(self, tags=None):
        raise NotImplementedError


class SleepModeBackendFactory:
    _registry = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls._registry:
            raise ValueError(f"Sleep-mode backend '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def get_backend_class(cls, name):
        return cls._registry[name]()
