package daemon

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traced makes a span of a request of somebody who is known, as part of the trace
// that the request names (W3C traceparent) or of one of its own. over ends it,
// when the answer is complete. Paths and queries are not in it, since names of
// files and of cells are in them: routes are.
func (d *Daemon) traced(r *http.Request) (_ *http.Request, over func()) {
	v := visitOf(r)
	if d.cfg.Tracer == nil || v == nil {
		return r, func() {}
	}
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := d.cfg.Tracer.Tracer("github.com/pando-dev/pando").Start(ctx, r.Method,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(v.began))
	return r.WithContext(ctx), func() {
		defer span.End()
		if !span.IsRecording() {
			return
		}
		door := "tcp"
		if v.from == "socket" {
			door = "socket"
		}
		span.SetAttributes(attribute.String("http.request.method", known(r.Method)), attribute.Int("http.response.status_code", v.w.status),
			attribute.String("pando.request", v.id), attribute.String("pando.door", door))
		switch {
		case v.route != nil:
			path, _ := v.route.Split()
			span.SetName(v.route.Method + " " + path)
			span.SetAttributes(attribute.String("http.route", path))
		case v.front:
			span.SetName(known(r.Method) + " front")
		default:
			span.SetName(known(r.Method))
		}
		if v.kind != "" {
			span.SetAttributes(attribute.String("error.type", v.kind))
		}
		if v.w.status >= 500 {
			span.SetStatus(codes.Error, v.kind)
		}
	}
}

// known is a method as it may be written down: others can be anything.
func known(method string) string {
	switch m := strings.ToUpper(method); m {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return m
	}
	return "_OTHER"
}
