def primes(n):
    "The prime numbers below n."
    return [k for k in range(2, n) if all(k % d for d in range(2, k))]
