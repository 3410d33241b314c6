package daemon

import (
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traced makes a span for a request of an authenticated caller, within the trace that the
// request names (W3C traceparent) or in a new one. over ends the span, when the answer is
// complete. Spans have routes, and no paths and queries, which contain names of files and cells.
func (d *Daemon) traced(r *http.Request) (_ *http.Request, over func()) {
	v := requestRecordOf(r)
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

// known returns the method for a span; unknown methods can be any text.
func known(method string) string {
	switch m := strings.ToUpper(method); m {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return m
	}
	return "_OTHER"
}
