//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// cellctl runs the operator's tool and gives what it printed and its exit code.
func cellctl(t testing.TB, args ...string) (string, int) {
	t.Helper()
	out, log, code := runCellctl(t, args...)
	return out + log, code
}

// cellctlOut is cellctl without its lines of progress.
func cellctlOut(t testing.TB, args ...string) (string, int) {
	t.Helper()
	out, log, code := runCellctl(t, args...)
	if code != 0 {
		t.Logf("cellctl %v: %s", args, log)
	}
	return out, code
}

func runCellctl(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, log bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(sys.root, "bin", "cellctl"), append(args, "--root", sys.root)...)
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("cellctl %v: %v", args, err)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

func mustCellctl(t testing.TB, args ...string) string {
	t.Helper()
	out, code := cellctl(t, args...)
	if code != 0 {
		t.Fatalf("cellctl %v = %d: %s", args, code, out)
	}
	return out
}

// linkIs waits until c1's agent says so of its link to c3.
func linkIs(t testing.TB, cell, peer string, up bool) {
	t.Helper()
	eventually(t, patience, "the link from "+cell+" to "+peer, func() (bool, string) {
		s, err := sys.agents[cell].Status(t.Context())
		if err != nil {
			return false, err.Error()
		}
		return s.Links[peer].Up == up, s.Links[peer].Reason
	})
}

// cutOff unplugs c3. Its user is refused at c1: within a second, or little more,
// while nobody knows; at once when that is known. A machine that does other things
// as well may take longer once, so that what took too long is measured again, twice
// at most.
func cutOff(t *testing.T, victim *shopper) {
	t.Helper()
	for try := 1; ; try++ {
		mustCellctl(t, "unplug", "c3")
		cut := time.Now()
		victim.via = "c1"
		first := victim.refused(t)
		linkIs(t, "c1", "c3", false)
		known := time.Since(cut)
		// Beside each refusal an answer that waits for nobody, as the machine is now.
		var took, plain []time.Duration
		for range 21 {
			took = append(took, victim.refused(t).took)
			a := victim.want(t, http.StatusOK, "GET", "/categories", "", nil)
			plain = append(plain, a.took)
		}
		slices.Sort(took)
		slices.Sort(plain)
		half := max(50*time.Millisecond, 3*plain[10])
		if first.took <= 1500*time.Millisecond && known <= 3*time.Second && took[10] <= half {
			return
		}
		say := t.Logf
		if try == 3 {
			say = t.Fatalf
		}
		say("cut %d of 3: before the breaker knew, the answer took %s, 1.5 s are allowed; known down after %s, 3 s are; then half of the refusals took over %s, %s are",
			try, first.took, known, took[10], half)
		mustCellctl(t, "plug", "c3")
		linkIs(t, "c1", "c3", true)
		victim.served(t, "c1")
	}
}

// refused is what c3's user is answered while c3 is cut off.
func (u *shopper) refused(t *testing.T) answer {
	t.Helper()
	a := u.do(t, "GET", "/wallet", "", nil)
	if a.status != 503 || a.code() != "CELL_UNREACHABLE" || a.str("cell") != "c3" || a.header.Get("Retry-After") == "" {
		t.Fatalf("c3's user at c1 = %s (Retry-After %q), want 503 CELL_UNREACHABLE of c3", a, a.header.Get("Retry-After"))
	}
	return a
}

// served waits until another cell's gateway has noticed that the home is back.
func (u *shopper) served(t *testing.T, via string) {
	t.Helper()
	u.via = via
	eventually(t, patience, u.home+"'s user is served at "+via+" again", func() (bool, string) {
		a := u.do(t, "GET", "/wallet", "", nil)
		return a.status == http.StatusOK, a.String()
	})
}

// Pull the plug on c3: nobody else notices; c3's users get a clear answer at other
// gateways, and c3 goes on inside. Plugged again, what was stuck settles.
func TestUnplug(t *testing.T) {
	all := []string{"c1", "c2", "c3", "c4"}
	m := openMarket(t, all...)
	victim := register(t, "c3")
	victim.deposit(t, 5000)
	payer := register(t, "c1")
	payer.deposit(t, 5000)
	late := register(t, "c2")
	l := startLoad(t, m, "c1", "c2", "c4")
	for _, home := range []string{"c1", "c2", "c4"} {
		l.goesOn(t, home, 20)
	}

	t.Cleanup(func() { cellctl(t, "plug", "c3") })
	cutOff(t, victim)

	// inside c3 life goes on
	victim.via = "c3"
	victim.want(t, http.StatusCreated, "POST", "/wallet/deposits", fresh("in"), map[string]any{"amount": 100, "currency": "CNY"})
	// others log in, at their home and elsewhere
	late.login(t, "c2")
	late.login(t, "c4")
	// what needs c3 is taken and waits
	pending := payer.want(t, http.StatusAccepted, "POST", "/orders", fresh("wait"), items(m.skus[2], 1))
	sent := payer.want(t, http.StatusAccepted, "POST", "/transfers", fresh("wait"), map[string]any{"to_user": victim.id, "amount": 70, "currency": "CNY"})
	if a := payer.do(t, "GET", "/orders/"+pending.str("number"), "", nil); a.str("state") != "PENDING" {
		t.Errorf("an order from c3 while it's away = %s", a)
	}
	// the edge has left c3
	for range 12 {
		a, err := send(t.Context(), "GET", sys.Edge+"/api/v1/products?limit=1", "", "", nil)
		if err != nil || a.status != http.StatusOK || a.header.Get("X-Cell") == "c3" {
			t.Errorf("the edge = %s from %q, %v", a, a.header.Get("X-Cell"), err)
		}
	}
	for _, home := range []string{"c1", "c2", "c4"} {
		l.goesOn(t, home, 150)
	}
	var stuckList []struct {
		ID string `json:"id"`
	}
	eventually(t, patience, "the transfer is listed as stuck", func() (bool, string) {
		out, _ := cellctl(t, "transfer", "-o", "json")
		_ = json.Unmarshal([]byte(out), &stuckList)
		for _, s := range stuckList {
			if s.ID == sent.str("id") {
				return true, ""
			}
		}
		return false, out
	})
	l.unharmed(t, "c1", "c2", "c4")

	mustCellctl(t, "plug", "c3")
	linkIs(t, "c1", "c3", true)
	payer.order(t, pending.str("number"), "PAID")
	payer.transfer(t, sent.str("id"), "SETTLED")
	if out := mustCellctl(t, "transfer", sent.str("id")); !bytes.Contains([]byte(out), []byte("SETTLED")) || !bytes.Contains([]byte(out), []byte("CREDITED")) {
		t.Errorf("the story of the transfer: %s", out)
	}
	l.end()
	l.unharmed(t, "c1", "c2", "c4")
	victim.served(t, "c2")
	if got := victim.available(t); got != 5170 {
		t.Errorf("c3's user has %d, want 5170", got)
	}
	atRest(t)
	covered(t)
}

// The link from c1 to c2 is cut one way, then delayed: nothing is lost or doubled.
func TestHalfCutAndSlowLink(t *testing.T) {
	m := openMarket(t, "c2")
	buyer := register(t, "c1")
	buyer.deposit(t, 10000)
	t.Cleanup(func() { cellctl(t, "link", "c1", "c2", "--cut", "none") })
	for _, how := range [][]string{{"--cut", "one-way"}, {"--delay", "150ms"}} {
		mustCellctl(t, append([]string{"link", "c1", "c2"}, how...)...)
		a := buyer.do(t, "POST", "/orders", fresh("half"), items(m.skus[0], 1))
		if a.status != http.StatusAccepted && a.status != http.StatusCreated {
			t.Fatalf("%v: place = %s", how, a)
		}
		mustCellctl(t, "link", "c1", "c2", "--cut", "none")
		buyer.order(t, a.str("number"), "PAID")
	}
	atRest(t)
}
