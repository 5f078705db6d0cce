package idbank

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
	"example.com/cellmart/platform/cellkit/id"
	"example.com/cellmart/platform/cellkit/obs"
)

// What processes ask of their agent's local API.
const (
	PathWithdraw = "/ids/bank"
	PathFallback = "/ids/fallback"
	PathReport   = "/ids/report"
)

const (
	callLimit   = 3 * time.Second
	reportEvery = 2 * time.Second
	maxAnswer   = 64 << 10
)

// WithdrawRequest asks for up to Size IDs of a kind out of the bank.
type WithdrawRequest struct {
	Kind   string `json:"kind"`
	Size   int64  `json:"size,string"`
	Holder string `json:"holder"`
}

// Withdrawal is the range [Lo, Hi).
type Withdrawal struct {
	Lo int64 `json:"lo,string"`
	Hi int64 `json:"hi,string"`
}

// FallbackRequest asks for up to Size numbers of a machine's counter.
type FallbackRequest struct {
	Holder string `json:"holder"`
	Size   int64  `json:"size,string"`
}

// Client is a process's way to its agent's bank.
type Client struct {
	base, holder string
	http         *http.Client
}

// NewClient asks the agent at base. name is the process (c1/order); each start
// of it is another holder, so two instances never share a machine.
func NewClient(base, name string) *Client {
	return &Client{
		base: strings.TrimSuffix(base, "/"), holder: name + "/" + strings.ToLower(rand.Text()[:6]),
		http: &http.Client{Timeout: callLimit, Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}},
	}
}

// Withdraw is an id.LeaseFunc: the bank's.
func (c *Client) Withdraw(ctx context.Context, kind string, _, size int64) (lo, hi int64, err error) {
	var out Withdrawal
	err = c.post(ctx, PathWithdraw, WithdrawRequest{Kind: kind, Size: size, Holder: c.holder}, &out)
	return out.Lo, out.Hi, err
}

// Fallback is an id.FallbackFunc.
func (c *Client) Fallback(ctx context.Context, size int64) (id.FallbackGrant, error) {
	var out id.FallbackGrant
	err := c.post(ctx, PathFallback, FallbackRequest{Holder: c.holder, Size: size}, &out)
	return out, err
}

// Tell reports to the agent and in the metrics how the process stands with its
// IDs, until ctx ends. An agent that is away hears the next report.
func (c *Client) Tell(ctx context.Context, ids *id.Client, m *obs.Metrics) error {
	show := gauges(m)
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		r := ids.Report(c.holder)
		show(r)
		_ = c.post(ctx, PathReport, r, nil) // the agent shows the age of what it has
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.http.CloseIdleConnections()
			return nil
		}
	}
}

// gauges shows a report; what isn't known is NaN, not zero.
func gauges(m *obs.Metrics) func(id.Report) {
	set := map[string]func(id.Stat) float64{
		"stock":               func(s id.Stat) float64 { return float64(s.Stock) },
		"stock_seconds":       func(s id.Stat) float64 { return known(s.StockS) },
		"given":               func(s id.Stat) float64 { return float64(s.Given) },
		"fallback":            func(s id.Stat) float64 { return float64(s.Fallback) },
		"waits":               func(s id.Stat) float64 { return float64(s.Waits) },
		"share_local":         func(s id.Stat) float64 { return known(s.Share) },
		"budget_used":         func(s id.Stat) float64 { return known(s.BudgetUsed) },
		"years_left":          func(s id.Stat) float64 { return s.YearsLeft },
		"quarantined_grants":  func(s id.Stat) float64 { return float64(s.Quarantined) },
		"failed_leases":       func(s id.Stat) float64 { return float64(s.Failures) },
		"withdrawn_from_bank": func(s id.Stat) float64 { return float64(s.Banked) },
		"ranges_taken_in":     func(s id.Stat) float64 { return float64(s.Ranges) },
		"rate_per_second":     func(s id.Stat) float64 { return s.Rate },
	}
	return func(r id.Report) {
		for name, value := range set {
			g := m.Gauge("cellmart_ids_"+name, "IDs in this process: "+strings.ReplaceAll(name, "_", " ")+", by kind.", "kind")
			for _, k := range r.Kinds {
				g.WithLabelValues(k.Kind).Set(value(k))
			}
		}
	}
}

func known(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

func (c *Client) post(ctx context.Context, path string, in, out any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return errs.ErrUnavailable.Because(err)
	}
	defer res.Body.Close()
	b, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return errs.ErrUnavailable.Because(err)
	}
	if res.StatusCode >= 300 {
		return call.DecodeProblem(res.StatusCode, res.Header, b)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return errs.ErrUnavailable.Because(fmt.Errorf("answer of the agent: %w", err))
	}
	return nil
}
