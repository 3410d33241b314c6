package pando;

import java.io.ByteArrayOutputStream;
import java.lang.reflect.Array;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Value says values as cell.Value does: JSON where it is exact, one-key objects for what JSON has
 * no word for; nothing where there is no exact form, but its text in what holds it.
 */
final class Value {
    private static final int MAX_JSON = 1 << 20; // bytes
    private static final int MAX_DEPTH = 200; // which is how cycles end, too
    private static final int MAX_BITS = 400000; // beyond, writing the digits takes too long
    private static final int MAX_OPAQUE = 1000; // characters of what is in something else and has no form
    private static final int MAX_FORM = 4 << 20; // characters
    private static final long EXACT = 1L << 53;

    /** Inexact is thrown where a value has no form in JSON. */
    private static class Inexact extends Exception {
        private static final long serialVersionUID = 1;

        Inexact() {
            super(null, null, false, false);
        }
    }

    /** TooMuch is thrown where what holds the value would be too long or too deep. */
    private static final class TooMuch extends Inexact {
        private static final long serialVersionUID = 1;
    }

    private int left = MAX_JSON;
    private final StringBuilder out = new StringBuilder();

    private static final String TOO_LONG = ",\"json_cut\":true";

    /** json is v in words of JSON, as a member of an answer with a comma before it; or that it
     *  would be too long or too deep; "" where there is no exact form. */
    static String json(Object v) {
        Value w = new Value();
        try {
            w.plain(v, 0);
        } catch (TooMuch | StackOverflowError e) {
            return TOO_LONG;
        } catch (Inexact | RuntimeException e) {
            return "";
        }
        String text = w.out.toString();
        return text.getBytes(StandardCharsets.UTF_8).length > MAX_JSON ? TOO_LONG : ",\"json\":" + text;
    }

    private void spend(int n) throws Inexact {
        if ((left -= n) < 0) {
            throw new TooMuch();
        }
    }

    /** part is plain of what is in something else, whose form it is not to cost it. */
    private void part(Object v, int depth) throws Inexact {
        int begin = out.length();
        try {
            plain(v, depth);
        } catch (TooMuch e) {
            throw e;
        } catch (Inexact e) {
            out.setLength(begin);
            String text = Bridge.cut(Bridge.repr(v), MAX_OPAQUE);
            spend(text.length());
            out.append("{\"$opaque\":{\"type\":").append(Json.quote(typeName(v))).append(",\"repr\":").append(Json.quote(text)).append("}}");
        }
    }

    private void plain(Object v, int depth) throws Inexact {
        if (v == null || v instanceof Boolean) {
            spend(4);
            out.append(v);
        } else if (v instanceof Byte || v instanceof Short || v instanceof Integer || v instanceof Long) {
            whole(BigInteger.valueOf(((Number) v).longValue()));
        } else if (v.getClass() == BigInteger.class) {
            whole((BigInteger) v);
        } else if (v instanceof Double || v instanceof Float) {
            real(((Number) v).doubleValue());
        } else if (v instanceof String || v instanceof Character) {
            text(v.toString());
        } else if (depth > MAX_DEPTH) {
            throw new TooMuch();
        } else if (v instanceof byte[]) {
            byte[] b = (byte[]) v;
            spend(b.length / 3 * 4);
            word("bytes", b);
        } else if (v.getClass().isArray()) {
            int n = Array.getLength(v);
            spend(n + 2);
            List<Object> list = new ArrayList<>(n);
            for (int i = 0; i < n; i++) {
                list.add(Array.get(v, i));
            }
            list(list, depth);
        } else if (!v.getClass().getName().startsWith("java.util.")) {
            throw new Inexact(); // a collection of somebody's own may be and do anything
        } else if (v instanceof Map) {
            map((Map<?, ?>) v, depth);
        } else if (v instanceof Set) {
            out.append("{\"$set\":");
            list((Set<?>) v, depth);
            out.append('}');
        } else if (v instanceof List) {
            list((List<?>) v, depth);
        } else {
            throw new Inexact();
        }
    }

    private void whole(BigInteger n) throws Inexact {
        if (n.bitLength() > MAX_BITS) {
            throw new Inexact();
        }
        spend(2 + n.bitLength() / 3);
        boolean exact = n.abs().compareTo(BigInteger.valueOf(EXACT)) <= 0;
        out.append(exact ? n.toString() : "{\"$int\":\"" + n + "\"}");
    }

    private void real(double d) throws Inexact {
        spend(3);
        if (Double.isNaN(d) || Double.isInfinite(d)) {
            out.append("{\"$float\":\"").append(d).append("\"}");
        } else {
            out.append(d);
        }
    }

    private void text(String s) throws Inexact {
        spend(s.length() + 2);
        if (whole(s)) {
            out.append(Json.quote(s));
        } else {
            word("str", wtf8(s));
        }
    }

    private static boolean whole(String s) {
        for (int i = 0; i < s.length(); i++) {
            if (Character.isSurrogate(s.charAt(i)) && !Json.paired(s, i)) {
                return false;
            }
        }
        return true;
    }

    private void word(String name, byte[] data) {
        out.append("{\"$").append(name).append("\":\"").append(Base64.getEncoder().encodeToString(data)).append("\"}");
    }

    /** wtf8 is the UTF-8 of a text that has half surrogates, which are kept. */
    private static byte[] wtf8(String s) {
        ByteArrayOutputStream b = new ByteArrayOutputStream();
        s.codePoints().forEach(c -> {
            if (c >= 0xd800 && c <= 0xdfff) {
                b.write(0xe0 | c >> 12);
                b.write(0x80 | c >> 6 & 63);
                b.write(0x80 | c & 63);
            } else {
                b.writeBytes(Character.toString(c).getBytes(StandardCharsets.UTF_8));
            }
        });
        return b.toByteArray();
    }

    private void list(Collection<?> list, int depth) throws Inexact {
        spend(2 + list.size());
        char before = '[';
        for (Object x : list) {
            out.append(before);
            part(x, depth + 1);
            before = ',';
        }
        out.append(before == '[' ? "[]" : "]");
    }

    private void map(Map<?, ?> m, int depth) throws Inexact {
        spend(2 + m.size());
        boolean names = true;
        for (Object k : m.keySet()) {
            names = names && k instanceof String && !((String) k).startsWith("$") && whole((String) k);
        }
        out.append(names ? "{" : "{\"$dict\":[");
        String between = "";
        for (Map.Entry<?, ?> e : m.entrySet()) {
            out.append(between).append(names ? "" : "[");
            part(e.getKey(), depth + 1);
            out.append(names ? ':' : ',');
            part(e.getValue(), depth + 1);
            out.append(names ? "" : "]");
            between = ",";
        }
        out.append(names ? "}" : "]}");
    }

    /** typeName is the name of a value's class, without the packages of the language and of JShell. */
    static String typeName(Object v) {
        return v == null ? "null" : name(v.getClass().getTypeName());
    }

    static String name(String type) {
        if (type.startsWith("java.lang.") && type.indexOf('.', 10) < 0) {
            return type.substring(10);
        }
        return type.replaceFirst("^REPL\\.\\$JShell\\$\\w+\\$", "");
    }

    /** mime is the richer form of a value, with a comma before it, "" if there is none. */
    static String mime(Object v) {
        if (v == null || !v.getClass().getName().equals("java.awt.image.BufferedImage")) {
            return "";
        }
        try {
            ByteArrayOutputStream b = new ByteArrayOutputStream();
            Class<?> io = Class.forName("javax.imageio.ImageIO"), image = Class.forName("java.awt.image.RenderedImage");
            io.getMethod("setUseCache", boolean.class).invoke(null, false);
            io.getMethod("write", image, String.class, java.io.OutputStream.class).invoke(null, v, "png", b);
            String data = Base64.getEncoder().encodeToString(b.toByteArray());
            if (data.length() > MAX_FORM) {
                System.err.println("pando: image/png is left out of the result: it has " + data.length() + " bytes, and at most " + MAX_FORM + " are taken; have the code write it to a file");
                return "";
            }
            return ",\"mime\":{\"image/png\":\"" + data + "\"}";
        } catch (ReflectiveOperationException e) {
            return ""; // a Java without pictures
        }
    }
}
