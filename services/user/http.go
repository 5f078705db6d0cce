package user

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/user/userapi"
)

const pageSize, maxPage = 20, 100

// routes is every path of the service. The gateway forwards what is under /api/
// and nothing else.
func (s *service) routes(e *echo.Echo) {
	e.Use(web.RouteContext()) // on a group it would answer 404 where 405 is due
	g := e.Group(api)
	g.POST("/users", s.handleRegister)
	g.GET("/operations/:id", s.handleOperation)
	g.POST("/sessions", s.handleLogin)
	g.DELETE("/sessions", s.handleLogOutEverywhere)
	g.POST("/sessions/refresh", s.handleRefresh)
	g.POST("/sessions/end", s.handleLogOut)
	g.GET("/me", s.handleMe)
	g.PATCH("/me", s.handlePatchMe)
	g.DELETE("/me", s.handleCloseMe)
	g.GET("/me/addresses", s.handleAddresses)
	g.POST("/me/addresses", s.handleAddAddress)
	g.DELETE("/me/addresses/:id", s.handleDropAddress)
	g.POST("/seller", s.handleOpenShop)
	g.GET("/wallet", s.handleWallet)
	g.GET("/wallet/statement", s.handleStatement)
	g.POST("/wallet/deposits", s.handleDeposit)
	g.POST("/wallet/withdrawals", s.handleWithdraw)
	g.POST("/transfers", s.handlePay)
	g.POST("/transfers/preview", s.handlePreview)
	g.GET("/transfers", s.handleTransfers)
	g.GET("/transfers/:id", s.handleTransfer)
	g.POST("/transfers/:id/cancel", s.handleTakeBack)
	g.POST("/transfers/:id/refunds", s.handleGiveBack)

	in := e.Group("/internal")
	in.POST("/lookup", s.handleLookup)
	in.GET("/denied", s.handleDenied)
	in.GET("/users/:id", s.handleInternalUser)
	in.GET("/users/:id/addresses/:address", s.handleInternalAddress)
}

// actor gives the route of a request that somebody has logged in for.
func actor(c echo.Context) (call.Route, error) {
	if _, err := web.Actor(c); err != nil {
		return call.Route{}, err
	}
	return web.RequireRoute(c)
}

// answer writes v unless there is an error.
func answer(c echo.Context, status int, v any, err error) error {
	if err != nil {
		return err
	}
	return c.JSON(status, v)
}

func (s *service) handleRegister(c echo.Context) error {
	op, err := web.IdempotencyKey(c)
	if err != nil {
		return err
	}
	var in userapi.RegisterRequest
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	out, err := s.register(c.Request().Context(), op, in)
	if out.Replayed {
		c.Response().Header().Set(web.HeaderReplayed, "true")
	}
	switch {
	case err != nil:
		return err
	case out.Session != nil:
		return c.JSON(http.StatusCreated, out.Session)
	}
	c.Response().Header().Set(echo.HeaderLocation, api+"/operations/"+out.Operation.ID.String())
	return c.JSON(http.StatusAccepted, out.Operation)
}

func (s *service) handleOperation(c echo.Context) error {
	user, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	r, err := web.RequireRoute(c)
	if err != nil {
		return err
	}
	out, err := s.operation(c.Request().Context(), r, user)
	return answer(c, http.StatusOK, out, err)
}

func (s *service) handleLogin(c echo.Context) error {
	r, err := web.RequireRoute(c)
	if err != nil {
		return err
	}
	var in userapi.LoginRequest
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	out, err := s.login(c.Request().Context(), r, in)
	return answer(c, http.StatusCreated, out, err)
}

func (s *service) handleRefresh(c echo.Context) error {
	r, err := web.RequireRoute(c)
	if err != nil {
		return err
	}
	var in userapi.RefreshRequest
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	out, err := s.refresh(c.Request().Context(), r, in.RefreshToken)
	return answer(c, http.StatusCreated, out, err)
}

func (s *service) handleLogOut(c echo.Context) error {
	r, err := web.RequireRoute(c)
	if err != nil {
		return err
	}
	var in userapi.RefreshRequest
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	if err := s.logOut(c.Request().Context(), r, in.RefreshToken); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *service) handleLogOutEverywhere(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	if err := s.logOutEverywhere(c.Request().Context(), r); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *service) handleDenied(c echo.Context) error {
	out, err := s.denied(c.Request().Context())
	return answer(c, http.StatusOK, out, err)
}

func (s *service) handleMe(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	u, err := s.store.user(c.Request().Context(), r.Slot, r.User)
	return answer(c, http.StatusOK, u.wire(), err)
}

func (s *service) handlePatchMe(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	var in userapi.PatchMe
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	u, err := s.patchMe(c.Request().Context(), r, in)
	return answer(c, http.StatusOK, u.wire(), err)
}

func (s *service) handleCloseMe(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	if err := s.closeMe(c.Request().Context(), r); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *service) handleAddresses(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	list, err := s.store.addresses(c.Request().Context(), r.Slot, r.User)
	return answer(c, http.StatusOK, userapi.Addresses{Items: append([]userapi.Address{}, list...)}, err)
}

func (s *service) handleAddAddress(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	var in userapi.AddressRequest
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	out, err := s.addAddress(c.Request().Context(), r, in)
	return answer(c, http.StatusCreated, out, err)
}

func (s *service) handleDropAddress(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	address, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	if err := s.dropAddress(c.Request().Context(), r, address); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (s *service) handleOpenShop(c echo.Context) error {
	r, err := actor(c)
	if err != nil {
		return err
	}
	var in userapi.SellerRequest
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	out, err := s.openShop(c.Request().Context(), r, in)
	return answer(c, http.StatusCreated, out, err)
}

// handleLookup is for the own cell's gateway and services.
func (s *service) handleLookup(c echo.Context) error {
	var in userapi.LookupRequest
	if err := web.Bind(c, &in); err != nil {
		return err
	}
	phone, err := phoneField("phone", in.Phone)
	if err != nil {
		return err
	}
	user, err := s.lookup(c.Request().Context(), phone)
	return answer(c, http.StatusOK, userapi.LookupAnswer{UserID: user}, err)
}

func (s *service) handleInternalUser(c echo.Context) error {
	user, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	r, err := web.RequireRoute(c)
	if err != nil {
		return err
	}
	u, err := s.store.user(c.Request().Context(), r.Slot, user)
	return answer(c, http.StatusOK, u.wire(), err)
}

func (s *service) handleInternalAddress(c echo.Context) error {
	user, err := web.PathID(c, "id")
	if err != nil {
		return err
	}
	address, err := web.PathID(c, "address")
	if err != nil {
		return err
	}
	r, err := web.RequireRoute(c)
	if err != nil {
		return err
	}
	a, err := s.store.address(c.Request().Context(), r.Slot, user, address)
	return answer(c, http.StatusOK, a, err)
}
