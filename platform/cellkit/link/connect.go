package link

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

const (
	maxHead     = 4 << 10
	established = "HTTP/1.1 200 Connection established\r\n\r\n"
)

// serveLocal answers one `CONNECT zone/target` of a process of this zone.
func (b *Border) serveLocal(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	unwatch := context.AfterFunc(ctx, func() { conn.Close() })
	defer unwatch()
	conn.SetDeadline(time.Now().Add(openLimit))
	zone, target, err := readConnect(conn)
	if err != nil {
		writeProblem(conn, err)
		return
	}
	far, w, hold, err := b.reach(ctx, zone, target)
	if err != nil {
		writeProblem(conn, err)
		return
	}
	if _, err := io.WriteString(conn, established); err != nil {
		far.Close()
		return
	}
	conn.SetDeadline(time.Time{})
	unwatch()
	splice(conn, far, w, hold)
}

// reach dials a target here or in another zone.
func (b *Border) reach(ctx context.Context, zone, target string) (net.Conn, *wire, func(func()) func(), error) {
	if zone == b.conf.Zone {
		t, ok := b.conf.Targets[target]
		if !ok {
			return nil, nil, nil, NoTarget.err(zone, target)
		}
		conn, err := dialTarget(ctx, t.Addr)
		if err != nil {
			return nil, nil, nil, ErrTargetDown.Msgf("%s in zone %s is not running", target, zone).In(zone).Because(err)
		}
		return conn, newWire(), b.holder(ctx, nil, nil, anyTerm), nil
	}
	p, ok := b.peers[zone]
	if !ok {
		return nil, nil, nil, ErrNoTarget.Msgf("there is no zone %q", zone).In(zone)
	}
	s, term, err := p.dial(ctx, target)
	if err != nil {
		return nil, nil, nil, err
	}
	return s, p.wire, b.holder(ctx, p, p.count, term), nil
}

// dialTarget opens one of a target's instances (a:1|b:1), begun with any: one that
// doesn't run refuses at once.
func dialTarget(ctx context.Context, addrs string) (net.Conn, error) {
	d := net.Dialer{Timeout: openLimit}
	all := strings.Split(addrs, "|")
	var first error
	for i, n := 0, rand.IntN(len(all)); i < len(all); i++ {
		conn, err := d.DialContext(ctx, "tcp", all[(n+i)%len(all)])
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

func readConnect(conn io.Reader) (zone, target string, err error) {
	head, err := readHead(conn)
	if err != nil {
		return "", "", badConnect(err)
	}
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		return "", "", badConnect(err)
	}
	zone, target = r.URL.Host, strings.TrimPrefix(r.URL.Path, "/")
	if r.Method != http.MethodConnect || zone == "" || target == "" {
		return "", "", badConnect(errors.New("not CONNECT zone/target"))
	}
	return zone, target, nil
}

func badConnect(err error) error {
	return errs.New(errs.Invalid, "BAD_CONNECT", "this listener wants CONNECT zone/target HTTP/1.1").Because(err)
}

// readHead reads an HTTP head and not one byte further.
func readHead(r io.Reader) ([]byte, error) {
	var head []byte
	var b [1]byte
	for len(head) < maxHead {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return nil, err
		}
		head = append(head, b[0])
		if bytes.HasSuffix(head, []byte("\r\n\r\n")) {
			return head, nil
		}
	}
	return nil, fmt.Errorf("head longer than %d bytes", maxHead)
}

// problem is the part of RFC 9457 that this listener speaks.
type problem struct {
	Type       string `json:"type"`
	Title      string `json:"title"`
	Status     int    `json:"status"`
	Code       string `json:"code"`
	Detail     string `json:"detail"`
	Cell       string `json:"cell,omitempty"`
	RetryAfter int    `json:"retry_after,omitempty"`
}

func writeProblem(w io.Writer, err error) {
	e := errs.From(err)
	status := e.HTTPStatus()
	body, _ := json.Marshal(problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Code: e.Code, Detail: e.Message, Cell: e.Cell, RetryAfter: int(e.RetryAfter / time.Second),
	}) // can't fail: strings and numbers
	h := http.Header{"Content-Type": {"application/problem+json"}}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(e.RetryAfter/time.Second)))
	}
	r := http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: h, Close: true,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	_ = r.Write(w) // the dialer is gone, then
}

// readProblem turns the listener's refusal back into the error it stands for.
func readProblem(head []byte, rest io.Reader, zone string) error {
	r, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), rest)), nil)
	if err != nil {
		return ErrLinkDown.Msgf("the own agent's answer is malformed").In(zone).Because(err)
	}
	defer r.Body.Close()
	var p problem
	if err := json.NewDecoder(io.LimitReader(r.Body, maxHead)).Decode(&p); err != nil || p.Code == "" {
		return ErrLinkDown.Msgf("the own agent answered %s", r.Status).In(zone).Because(err)
	}
	return &errs.Error{
		Kind: errs.KindOf(p.Status), Code: p.Code, Message: p.Detail, Cell: p.Cell,
		RetryAfter: time.Duration(p.RetryAfter) * time.Second,
	}
}
