import os, random, secrets, ssl, uuid
try:
    import numpy
except ImportError:
    numpy = None
seeded = random.Random(os.urandom(16))
def draw():
    drawn = {"os.urandom": os.urandom(16).hex(), "secrets": secrets.token_hex(16), "uuid.uuid4": uuid.uuid4(), "ssl.RAND_bytes": ssl.RAND_bytes(16).hex(), "random": random.random(), "random.Random(seed)": seeded.random()}
    if numpy:
        drawn["numpy.random"] = numpy.random.random()
    return drawn
def draws():
    for _ in range(20):
        for kv in draw().items():
            print(*kv)
draw()
