package daemon

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/coder/websocket"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

func (d *Daemon) listPorts(_ http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	list, err := d.cfg.Engine.Ports(r.Context(), id)
	if err != nil {
		return nil, err
	}
	out := []api.Port{}
	for _, p := range list {
		out = append(out, api.Port{Port: p.Port, Address: p.Address})
	}
	return out, nil
}

// portOf resolves the cell and the port in the path.
func (d *Daemon) portOf(r *http.Request) (id cell.ID, port int, err error) {
	port, err = strconv.Atoi(r.PathValue("port"))
	if err != nil || port < 1 || port > 65535 || strconv.Itoa(port) != r.PathValue("port") {
		return "", 0, cell.Errorf(cell.Invalid, "daemon.port", "give a number from 1 to 65535", "%s is no port", strconv.Quote(cell.Clip(r.PathValue("port"))))
	}
	id, err = d.cellOf(r)
	return id, port, err
}

// connectPort upgrades the request to a WebSocket. Its binary messages are the bytes of a
// connection to a port, both ways. Either end closes it.
func (d *Daemon) connectPort(w http.ResponseWriter, r *http.Request) (any, error) {
	id, port, err := d.portOf(r)
	if err != nil {
		return nil, err
	}
	if !upgrades(r) {
		return nil, noWebSocket(r)
	}
	conn, err := d.cfg.Engine.Dial(r.Context(), id, port)
	if err != nil {
		return nil, err
	}
	return d.carryTo(w, r, conn)
}

// fetchFrom upgrades the request to a WebSocket. Its binary messages are the bytes of git's upload-pack on the commits that
// were made in the cell.
func (d *Daemon) fetchFrom(w http.ResponseWriter, r *http.Request) (any, error) {
	id, err := d.cellOf(r)
	if err != nil {
		return nil, err
	}
	if !upgrades(r) {
		return nil, noWebSocket(r)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	conn, err := d.cfg.Engine.FetchFrom(ctx, id)
	if err != nil {
		return nil, err
	}
	return d.carryTo(w, r, conn)
}

// carryTo upgrades a request, and carries its bytes to a connection and back until either ends. It closes the connection.
func (d *Daemon) carryTo(w http.ResponseWriter, r *http.Request, conn net.Conn) (any, error) {
	defer conn.Close()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return done{}, nil // Accept has answered
	}
	defer ws.CloseNow()
	ws.SetReadLimit(api.MaxFrame)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	d.mu.Lock()
	life := d.life
	d.mu.Unlock()
	defer context.AfterFunc(life, cancel)()
	carry(ctx, cancel, ws, conn)
	return done{}, nil
}

// carry passes bytes between a WebSocket and a connection. All bytes of the connection are
// delivered, also after the other side has ended its direction with an empty message.
func carry(ctx context.Context, cancel context.CancelFunc, ws *websocket.Conn, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var up sync.WaitGroup
	up.Go(func() {
		for {
			_, b, err := ws.Read(ctx)
			if err != nil {
				cancel()
				return
			}
			if len(b) == 0 {
				if c, ok := conn.(interface{ CloseWrite() error }); ok {
					c.CloseWrite()
				}
				continue
			}
			if _, err := conn.Write(b); err != nil {
				cancel()
				return
			}
		}
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := conn.Read(buf)
		if n > 0 && ws.Write(ctx, websocket.MessageBinary, buf[:n]) != nil {
			break
		}
		if err != nil {
			if ctx.Err() == nil {
				ws.Close(websocket.StatusNormalClosure, "")
			}
			break
		}
	}
	cancel()
	up.Wait()
}

// proxyPort passes a request on to a server on a port of a cell, WebSockets included. The
// program sees neither the caller's token nor its identity.
func (d *Daemon) proxyPort(w http.ResponseWriter, r *http.Request) (any, error) {
	id, port, err := d.portOf(r)
	if err != nil {
		return nil, err
	}
	host := "localhost:" + strconv.Itoa(port)
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.cfg.Engine.Dial(ctx, id, port)
		},
		DisableKeepAlives:  true, // an open connection keeps the cell alive
		DisableCompression: true,
	}
	defer t.CloseIdleConnections()
	var failed error
	p := &httputil.ReverseProxy{
		Transport:     t,
		FlushInterval: -1,
		ErrorLog:      nil,
		Rewrite: func(pr *httputil.ProxyRequest) {
			// The raw path: escaped parts stay escaped.
			parts := strings.SplitN(r.URL.EscapedPath(), "/", 8) // "", v1, cells, CELL, ports, PORT, http
			pr.Out.URL = &url.URL{Scheme: "http", Host: host, Path: "/" + r.PathValue("rest"), RawPath: "/" + parts[len(parts)-1], RawQuery: r.URL.RawQuery}
			pr.Out.Host = host
			access.Strip(pr.Out)
			for _, h := range []string{"Cookie", "X-Forwarded-For"} { // cookies belong to pando's address, and so to every cell
				pr.Out.Header.Del(h)
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			// The origin is pando's: an answer of a cell must not run as a page of it.
			resp.Header.Set("Content-Security-Policy", "sandbox allow-scripts allow-forms")
			resp.Header.Set("X-Content-Type-Options", "nosniff")
			resp.Header.Del("Set-Cookie")
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	p.ServeHTTP(w, r)
	if failed != nil {
		if m := unread(failed); cell.KindOf(m) == cell.TooLarge {
			return nil, m
		}
		return nil, cell.Errorf(cell.Unavailable, "daemon.port", "GET /v1/cells/CELL/ports lists the ports in use", "port %d does not answer: %w", port, failed)
	}
	return done{}, nil
}
