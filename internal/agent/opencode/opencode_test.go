package opencode

import (
	"testing"

	"github.com/pando-dev/pando/internal/agent/agenttest"
)

func TestAdapter(t *testing.T) { agenttest.Run(t, Adapter{}) }
