package codex

import (
	"testing"

	"github.com/pando-dev/pando/internal/agent/agenttest"
)

func FuzzTranscript(f *testing.F) { agenttest.FuzzTranscript(f, Adapter{}) }
