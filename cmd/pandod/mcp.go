//go:build linux

package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/ceiling"
	"github.com/pando-dev/pando/internal/mcp"
)

// serveAgents adapts package mcp to the command line.
func serveAgents(ctx context.Context, c *client.Client, version, dir string, credentials []string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return mcp.New(mcp.Config{Client: c.For(ceiling.MCP), Version: version, Dir: dir, Credentials: credentials, Log: log}).Run(ctx)
}
