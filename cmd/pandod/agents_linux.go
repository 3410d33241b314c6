package main

import (
	"context"
	"log/slog"
	"net/http"
	"sync"

	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/daemon"
	"github.com/pando-dev/pando/internal/mcp"
	"github.com/pando-dev/pando/internal/paths"
)

// agents is the front for agents over HTTP, at /mcp. It is made at their first request.
func agents(h paths.Home, version string, log *slog.Logger) daemon.Front {
	handler := sync.OnceValue(func() http.Handler {
		return mcp.Handler(mcp.Config{Version: version, Log: slog.New(warnings{log.Handler()})}, func(r *http.Request) *client.Client {
			return client.New(client.Config{Socket: h.Socket(), Token: access.Presented(r), Door: ceiling.MCP})
		})
	})
	return daemon.Front{
		Match:   func(r *http.Request) bool { return r.URL.Path == "/mcp" },
		Needs:   func(*http.Request) access.Level { return access.Read },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler().ServeHTTP(w, r) }),
	}
}

// warnings drops harmless log entries.
type warnings struct{ slog.Handler }

// Enabled implements slog.Handler.
func (warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
