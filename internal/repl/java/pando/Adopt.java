package pando;

import java.io.FileInputStream;
import java.io.InputStream;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Collections;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;

/** Adopt makes one of two copies of a whole machine another, as far as that lies in it. */
final class Adopt {
    private static final StringBuilder said = new StringBuilder();

    private interface Renewal {
        void with(byte[] fresh) throws Exception;
    }

    static synchronized String adopt(Map<String, Object> q) throws Exception {
        Object dir = q.get("workdir");
        if (dir != null && !dir.equals("") && !dir.equals(System.getProperty("user.dir"))) {
            throw new IllegalArgumentException("a Java program can't go to another folder: it is in " + System.getProperty("user.dir"));
        }
        if (q.get("env") instanceof Map) {
            environment((Map<?, ?>) q.get("env"));
        }
        said.setLength(0);
        hazard("kernel randomness", digest(kernel(16)));
        renew("secure randomness", b -> new SecureRandom().setSeed(b)); // all that are made by name of the default share a mixer
        renew("randomness", Adopt::random);
        renew("randomness of threads", Adopt::threads);
        hazard("seeded generators", "not counted: in each copy those that code has made go on from the same state");
        hazard("hash seed", "inherited: sets and maps of Set.of and Map.of have the order that they had");
        hazard("clock", String.format(Locale.ROOT, "%.3f", System.currentTimeMillis() / 1e3));
        return "\"adopted\":{\"hazards\":[" + said + "],\"dropped\":[]}";
    }

    private static void hazard(String name, String value) {
        said.append(said.length() == 0 ? "" : ",").append("{\"name\":").append(Json.quote(name)).append(",\"value\":").append(Json.quote(value)).append('}');
    }

    private static void renew(String name, Renewal r) {
        try {
            byte[] fresh = kernel(32);
            r.with(fresh);
            hazard(name, digest(fresh));
        } catch (Exception e) {
            hazard(name, "cannot be renewed: " + e);
        }
    }

    /** kernel is randomness that no copy of this machine has seen. */
    private static byte[] kernel(int n) throws Exception {
        try (InputStream in = new FileInputStream("/dev/urandom")) {
            return in.readNBytes(n);
        }
    }

    private static String digest(byte[] data) throws Exception {
        MessageDigest d = MessageDigest.getInstance("SHA-256");
        d.update("pando".getBytes());
        StringBuilder b = new StringBuilder("fresh, sha256 ");
        byte[] sum = d.digest(data);
        for (int i = 0; i < 8; i++) {
            b.append(String.format("%02x", sum[i]));
        }
        return b.toString();
    }

    private static Object field(Class<?> c, Object of, String name) throws Exception {
        Field f = c.getDeclaredField(name);
        f.setAccessible(true);
        return f.get(of);
    }

    /** random renews the generators of Math.random and Collections.shuffle, and what seeds those that are made. */
    private static void random(byte[] b) throws Exception {
        ByteBuffer seed = ByteBuffer.wrap(b);
        Math.random(); // there is one now
        ((Random) field(Class.forName("java.lang.Math$RandomNumberGeneratorHolder"), null, "randomNumberGenerator")).setSeed(seed.getLong());
        Object shuffles = field(Collections.class, null, "r");
        if (shuffles != null) {
            ((Random) shuffles).setSeed(seed.getLong());
        }
        ((AtomicLong) field(Random.class, null, "seedUniquifier")).set(seed.getLong() | 1);
    }

    /** threads renews what ThreadLocalRandom has in each thread, and what seeds those to come. */
    private static void threads(byte[] b) throws Exception {
        ByteBuffer seed = ByteBuffer.wrap(b);
        ((AtomicLong) field(java.util.concurrent.ThreadLocalRandom.class, null, "seeder")).set(seed.getLong());
        long next = seed.getLong();
        Field f = Thread.class.getDeclaredField("threadLocalRandomSeed");
        f.setAccessible(true);
        for (Thread t : Thread.getAllStackTraces().keySet()) {
            next = next * 6364136223846793005L + 1442695040888963407L;
            f.setLong(t, next);
        }
    }

    /** environment changes what System.getenv says, and what programs get that are started. */
    @SuppressWarnings("unchecked")
    private static void environment(Map<?, ?> env) throws Exception {
        Map<String, String> mine = System.getenv();
        Map<String, String> own = (Map<String, String>) field(Class.forName("java.util.Collections$UnmodifiableMap"), mine, "m");
        for (Map.Entry<?, ?> e : env.entrySet()) {
            if ("".equals(e.getValue())) {
                own.remove(e.getKey());
            } else {
                own.put((String) e.getKey(), (String) e.getValue());
            }
        }
    }
}
