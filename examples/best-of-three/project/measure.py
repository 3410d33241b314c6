import time

from primes import primes

began = time.perf_counter()
primes(20_000)
print((time.perf_counter() - began) * 1000)
