import os, random, secrets, ssl, time, uuid
try:
    import numpy
except ImportError:
    numpy = None
log = os.open("log-python", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
while True:
    drawn = {"os.urandom": os.urandom(16).hex(), "secrets": secrets.token_hex(16), "uuid.uuid4": uuid.uuid4(), "ssl.RAND_bytes": ssl.RAND_bytes(16).hex(), "random": random.random()}
    if numpy:
        drawn["numpy.random"] = numpy.random.random()
    os.write(log, "".join("%s %s\n" % kv for kv in drawn.items()).encode())
    time.sleep(0.02)
