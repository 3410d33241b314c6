package machine

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// A machine that was given no link has loopback alone; one that was given one has it,
// or does not become a cell.
func TestNetwork(t *testing.T) {
	err := linux.InNetNS(0, func() error {
		if err := network(); err != nil {
			return err
		}
		if i, err := net.InterfaceByName("lo"); err != nil || i.Flags&net.FlagUp == 0 {
			t.Errorf("loopback: %+v, %v", i, err)
		}
		t.Setenv("pando_net", "1")
		if err := network(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "cannot find the interface to the cell's gateway") {
			t.Errorf("without the interface: %v", err)
		}
		n, err := linux.OpenNetlink()
		if err != nil {
			return err
		}
		defer n.Close()
		n.AddVeth(linux.LinkEnd{Name: "gateway", MAC: cell.GatewayMAC, MTU: 1500}, linux.LinkEnd{Name: "eth0", MAC: cell.CellMAC, MTU: 1500}, 0)
		if err := n.Send(); err != nil {
			return err
		}
		far, err := linux.InterfaceIndex("gateway")
		if err != nil {
			return err
		}
		n.Up(far, 0)
		if err := n.Send(); err != nil {
			return err
		}
		if err := network(); linux.HasIPv6() == (err != nil) {
			t.Errorf("with the interface: %v", err)
		}
		i, err := net.InterfaceByName(cell.InterfaceName)
		if err != nil || i.Flags&net.FlagUp == 0 || i.MTU != cell.DefaultLink().MTU {
			t.Errorf("%+v, %v", i, err)
		}
		return nil
	})
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs root")
	}
	if err != nil {
		t.Fatal(err)
	}
}
