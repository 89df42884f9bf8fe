// SPDX-License-Identifier: Apache-2.0
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.client.BKException;

/**
 * Commands as lines of JSON: {"id": n, "do": name, ...} on standard input is answered by {"id": n, "ok": {...}} or
 * {"id": n, "error": {...}} on standard output. Each command has a thread of its own, so answers come in any order.
 * The process ends when its input does, which is when its parent has died.
 */
final class Lines {
    /** A command's arguments. */
    static final class Arguments {
        private final Map<String, Object> values;

        Arguments(Map<String, Object> values) {
            this.values = values;
        }

        boolean has(String name) {
            return values.get(name) != null;
        }

        Object any(String name) {
            Object value = values.get(name);
            if (value == null) {
                throw new IllegalArgumentException("the command lacks " + name);
            }
            return value;
        }

        String text(String name) {
            return (String) any(name);
        }

        String text(String name, String otherwise) {
            return has(name) ? text(name) : otherwise;
        }

        long number(String name) {
            return ((Number) any(name)).longValue();
        }

        long number(String name, long otherwise) {
            return has(name) ? number(name) : otherwise;
        }

        int small(String name) {
            return Math.toIntExact(number(name));
        }

        int small(String name, int otherwise) {
            return has(name) ? small(name) : otherwise;
        }

        boolean flag(String name) {
            return has(name) && (Boolean) any(name);
        }

        byte[] bytes(String name) {
            return Base64.getDecoder().decode(text(name));
        }

        @SuppressWarnings("unchecked")
        Map<String, Object> map(String name) {
            return has(name) ? (Map<String, Object>) any(name) : Map.of();
        }

        @SuppressWarnings("unchecked")
        List<Object> list(String name) {
            return has(name) ? (List<Object>) any(name) : List.of();
        }
    }

    /** What a program does for a command; the answer's fields. */
    interface Program {
        Map<String, Object> run(String command, Arguments arguments) throws Exception;
    }

    private static final ObjectMapper JSON = new ObjectMapper();

    private Lines() {}

    static Map<String, Object> answer(Object... namesAndValues) {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            fields.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        return fields;
    }

    static String text(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    /** Serve until the input ends. What libraries print goes to standard error, which is the log. */
    @SuppressWarnings("unchecked")
    static void serve(Program program) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        send(answers, answer("id", 0, "ok", answer()));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> command = JSON.readValue(line, Map.class);
            threads.execute(() -> send(answers, run(program, command)));
        }
        Runtime.getRuntime().halt(0); // nothing here is worth an orderly end: tests end bookies by "stop"
    }

    private static Map<String, Object> run(Program program, Map<String, Object> command) {
        Object id = command.get("id");
        try {
            return answer("id", id, "ok", program.run((String) command.get("do"), new Arguments(command)));
        } catch (Throwable failure) {
            failure.printStackTrace();
            return answer("id", id, "error", error(failure));
        }
    }

    /** A failure's name and text; with BookKeeper's code if it has one. */
    static Map<String, Object> error(Throwable failure) {
        Throwable cause = failure;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        Map<String, Object> error = answer("name", cause.getClass().getSimpleName(), "message", "" + cause);
        if (cause instanceof org.apache.bookkeeper.client.api.BKException) {
            int code = ((org.apache.bookkeeper.client.api.BKException) cause).getCode();
            error.put("code", code);
            error.put("name", codeName(code));
        }
        return error;
    }

    private static void send(PrintStream answers, Map<String, Object> answer) {
        try {
            String line = JSON.writeValueAsString(answer);
            synchronized (answers) {
                answers.println(line);
            }
        } catch (Exception impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    /** A code's constant without its ending: -7 is NoSuchLedgerExists. */
    static String codeName(int code) {
        for (Field field : BKException.Code.class.getFields()) {
            try {
                if (field.getType() == int.class && field.getInt(null) == code) {
                    return field.getName().replaceAll("Exception$", "");
                }
            } catch (IllegalAccessException skipped) {
                continue;
            }
        }
        return "Code" + code;
    }
}
