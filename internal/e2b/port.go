package e2b

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"

	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
)

// proxy passes a request on to a server on a port of a sandbox, WebSockets and other upgrades
// included.
func (f *Front) proxy(w http.ResponseWriter, r *http.Request, id cell.ID, port int) {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return f.cfg.Engine.Dial(ctx, id, port)
		},
		DisableKeepAlives:  true, // an open connection keeps the cell alive
		DisableCompression: true,
	}
	defer t.CloseIdleConnections()
	p := &httputil.ReverseProxy{
		Transport:     t,
		FlushInterval: -1,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(&url.URL{Scheme: "http", Host: "localhost:" + strconv.Itoa(port)})
			pr.Out.Host = pr.In.Host
			if pr.In.Header.Get("E2b-Sandbox-Id") != "" { // the host is ours, and unknown to the program
				pr.Out.Host = "localhost:" + strconv.Itoa(port)
			}
			access.Strip(pr.Out)
			pr.SetXForwarded()
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			answer(w, http.StatusBadGateway, map[string]any{"code": http.StatusBadGateway, "sandboxId": string(id), "port": port,
				"message": "The sandbox is running but port is not open: " + sentence(err)})
		},
	}
	p.ServeHTTP(w, r)
}
