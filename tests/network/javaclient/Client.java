import java.net.URI;
import java.net.URLConnection;

/** A program in Java, with nothing set: it fetches a URL. */
class Client {
    public static void main(String[] arguments) throws Exception {
        URLConnection connection = URI.create(arguments[0]).toURL().openConnection();
        connection.setConnectTimeout(10_000);
        connection.setReadTimeout(10_000);
        connection.getInputStream().transferTo(System.out);
    }
}
