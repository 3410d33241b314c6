import java.io.FileOutputStream;
import java.security.SecureRandom;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;

class Draw {
    public static void main(String[] args) throws Exception {
        FileOutputStream log = new FileOutputStream("log-java", true);
        SecureRandom secure = new SecureRandom();
        while (true) {
            log.write(("SecureRandom " + Long.toHexString(secure.nextLong()) + Long.toHexString(secure.nextLong()) + "\n"
                + "UUID.randomUUID " + UUID.randomUUID() + "\n"
                + "Math.random " + Math.random() + "\n"
                + "ThreadLocalRandom " + ThreadLocalRandom.current().nextLong() + "\n").getBytes());
            Thread.sleep(200);
        }
    }
}
