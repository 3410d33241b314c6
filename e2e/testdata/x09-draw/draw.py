# On SIGUSR1 it renews what it can, as each of those that have a handler.
import os, random, secrets, signal, ssl, time, uuid
try:
    import numpy
except ImportError:
    numpy = None
def renew(*_):
    random.seed()
    ssl.RAND_add(os.urandom(48), 48.0)
    if numpy:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))
signal.signal(signal.SIGUSR1, renew)
log = os.open("log-python", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
while True:
    drawn = {"os.urandom": os.urandom(16).hex(), "secrets": secrets.token_hex(16), "uuid.uuid4": uuid.uuid4(), "ssl.RAND_bytes": ssl.RAND_bytes(16).hex(), "random": random.random()}
    if numpy:
        drawn["numpy.random"] = numpy.random.random()
    os.write(log, "".join("%s %s\n" % kv for kv in drawn.items()).encode())
    time.sleep(0.2)
