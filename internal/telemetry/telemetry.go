// Package telemetry exports traces by OpenTelemetry's protocol (OTLP), when the
// standard environment variables ask for it:
//
//	OTEL_EXPORTER_OTLP_ENDPOINT         http://collector:4318; /v1/traces is added
//	OTEL_EXPORTER_OTLP_TRACES_ENDPOINT  the whole URL, instead
//	OTEL_EXPORTER_OTLP_[TRACES_]HEADERS, _TIMEOUT, _COMPRESSION, _CERTIFICATE,
//	_CLIENT_CERTIFICATE, _CLIENT_KEY, _PROTOCOL (http/protobuf alone)
//	OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
//	OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG, OTEL_BSP_…, OTEL_SPAN_…
//	OTEL_TRACES_EXPORTER=none, OTEL_SDK_DISABLED=true   switch it off
//
// Spans, sampling, batches and the encoding are those of the official libraries.
// What carries them is ours: the official client for HTTP brings gRPC with it,
// which is 5 MB of program and a third more work at every start.
//
// A collector that can't be reached costs nothing but its spans: they are dropped
// when the batch is full, and the log says so.
package telemetry

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/pando-dev/pando/internal/cell"
)

// Environment returns the variables of env, in the form of os.Environ, that mean
// something to Open: a process without an environment can be handed them.
func Environment(env []string) (list []string) {
	for _, kv := range env {
		if strings.HasPrefix(kv, "OTEL_") {
			list = append(list, kv)
		}
	}
	slices.Sort(list)
	return list
}

// complaints tells of what fails, once in a while: a collector may be gone for days.
type complaints struct {
	log *slog.Logger

	mu   sync.Mutex // guards last
	last time.Time
}

// Handle implements otel.ErrorHandler.
func (c *complaints) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.last) < time.Minute {
		return
	}
	c.last = time.Now()
	c.log.Warn("cannot export traces", "error", err)
}

// reading is held while the environment is this package's: see Open.
var reading sync.Mutex

// Open returns the provider of spans that the variables of env ask for, or nil if they ask
// for no traces. close sends what is left, as long as ctx lives.
func Open(ctx context.Context, env []string, version string, log *slog.Logger) (_ trace.TracerProvider, close func(context.Context) error, err error) {
	vars := map[string]string{}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		vars[k] = strings.TrimSpace(v)
	}
	c, err := clientOf(vars)
	if c == nil || err != nil {
		return nil, nil, err
	}
	exporter, err := otlptrace.New(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	// The libraries read the environment themselves, once. It has secrets in it that no
	// other part of this process should see.
	reading.Lock()
	defer reading.Unlock()
	for _, kv := range Environment(env) {
		k, v, _ := strings.Cut(kv, "=")
		os.Setenv(k, v)
		defer os.Unsetenv(k)
	}
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "pando"), attribute.String("service.version", version), attribute.Int("process.pid", os.Getpid())), resource.WithFromEnv())
	if err != nil {
		return nil, nil, cell.Errorf(cell.Invalid, "telemetry.Open", "look at OTEL_RESOURCE_ATTRIBUTES: NAME=VALUE, with commas between them", "cannot trace: %w", err)
	}
	otel.SetErrorHandler(&complaints{log: log})
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	log.Info("traces are exported", "to", c.where())
	return p, p.Shutdown, nil
}
