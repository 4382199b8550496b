"""Stands in for SGLang 0.5.23's module of this name where it is not
installed: its application, with what answers a GET."""


class App:
    def __init__(self):
        self.routes = {}

    def get(self, path):
        def add(call):
            self.routes[path] = call
            return call
        return add


app = App()
