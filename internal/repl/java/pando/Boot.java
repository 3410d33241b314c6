package pando;

/** Boot looks whether this Java can evaluate, in words that any can understand, and begins. */
public final class Boot {
    public static void main(String[] args) throws Throwable {
        String version = System.getProperty("java.specification.version");
        if (version.startsWith("1.") || Integer.parseInt(version) < 11) {
            end("Java 11 or later is needed, and this is " + version);
        }
        try {
            Class.forName("jdk.jshell.JShell");
        } catch (ClassNotFoundException e) {
            end("this Java has no module jdk.jshell, which evaluates code: a JDK has it (Debian: openjdk-17-jdk-headless)");
        }
        Class.forName("pando.Bridge").getMethod("main", String[].class).invoke(null, (Object) args);
    }

    private static void end(String why) {
        System.err.println(why);
        System.exit(1);
    }
}
