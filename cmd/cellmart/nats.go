package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"example.com/cellmart/platform/cellkit"
	"example.com/cellmart/platform/cellkit/env"
)

type natsConfig struct {
	Host string
	Port int
	Dir  string
}

func loadNATS(getenv func(string) string) (natsConfig, *env.Reader) {
	r := env.NewReader("NATS", getenv)
	addr := r.String("ADDR", "127.0.0.1:4222", "listen address for clients")
	c := natsConfig{Dir: r.Required("DIR", "folder of the JetStream store")}
	host, port, err := net.SplitHostPort(addr)
	if err == nil {
		c.Port, err = strconv.Atoi(port)
	}
	if err != nil {
		r.Fail("ADDR", fmt.Sprintf("is %q, not host:port", addr))
	}
	c.Host = host
	return c, r
}

func natsVars() []env.Var {
	_, r := loadNATS(func(string) string { return "" })
	return r.Vars()
}

// runNATS is a NATS server with JetStream, for running a cell without the
// nats-server program; the same module as the image nats:2.15-alpine.
func runNATS(ctx context.Context, p cellkit.Process) error {
	c, r := loadNATS(p.Getenv)
	if err := r.Err(); err != nil {
		return cellkit.Usage{Err: err}
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "nats-" + p.Getenv("CELL"),
		Host:       c.Host, Port: c.Port,
		JetStream: true, StoreDir: c.Dir,
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 8 << 30,
		NoSigs: true, NoSystemAccount: true, DisableShortFirstPing: true,
		PingInterval: 20 * time.Second, // also how long a dead client counts
		MaxPayload:   1 << 20,
	})
	if err != nil {
		return err
	}
	s.SetLoggerV2(natsLog{p}, false, false, false)
	go s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		s.Shutdown()
		return errors.New("did not come up: is the address free, is the folder writable?")
	}
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// natsLog keeps warnings and errors.
type natsLog struct{ p cellkit.Process }

func (l natsLog) Noticef(string, ...any)    {}
func (l natsLog) Debugf(string, ...any)     {}
func (l natsLog) Tracef(string, ...any)     {}
func (l natsLog) Warnf(f string, a ...any)  { l.p.Log.Warn(fmt.Sprintf(f, a...)) }
func (l natsLog) Fatalf(f string, a ...any) { l.p.Log.Error(fmt.Sprintf(f, a...)) }
func (l natsLog) Errorf(f string, a ...any) { l.p.Log.Error(fmt.Sprintf(f, a...)) }
