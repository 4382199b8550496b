"""Plain memory of a GPU, for tests and measurements."""

import ctypes

from mmx import cuda


class Gpu:
    """Plain memory of a GPU, as a pool's map looks to cuda.Rows."""

    def __init__(self, gpu=0):
        self.gpu, self.driver, self.writable = gpu, cuda.Driver.get(), True
        with self.driver.context(gpu):
            stream = ctypes.c_void_p()
            self.driver.stream(ctypes.byref(stream), 1)
        self.stream, self.base = stream.value, cuda._Shown(self)

    def take(self, size):
        at = ctypes.c_uint64()
        with self.driver.context(self.gpu):
            if self.driver.lib.cuMemAlloc_v2(ctypes.byref(at),
                                             ctypes.c_size_t(size)):
                raise cuda.CudaError("out of memory")
        return at.value

    def give(self, at):
        with self.driver.context(self.gpu):
            self.driver.lib.cuMemFree_v2(ctypes.c_uint64(at))

    def copy(self, to, source, size):
        with self.driver.context(self.gpu):
            self.driver.copy(to, source, size, self.stream)

    def sync(self):
        with self.driver.context(self.gpu):
            self.driver.sync(self.stream)

    def write(self, at, array):
        self.copy(at, array.ctypes.data, array.nbytes)
        self.sync()

    def read(self, at, array):
        self.copy(array.ctypes.data, at, array.nbytes)
        self.sync()
