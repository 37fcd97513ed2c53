#include "engine/failure.hpp"

#include <new>
#include <stdexcept>

#include "engine/json.hpp"
#include "kernels/device_error.hpp"

namespace longhaul {

Failure current_failure() {
    try {
        throw;
    } catch (const Error& error) {
        return {error.what(), error.exit_code()};
    } catch (const std::bad_alloc&) {
        return {out_of_memory};
    } catch (const kernels::DeviceError& error) {
        return {"device: expected no device error, got '" + engine::printable(error.what(), 300) +
                "'; checkpoints are kept: run again"};
    } catch (const std::exception& error) {
        return {"internal: expected no failure here, got '" + engine::printable(error.what(), 300) +
                "'; please report it"};
    }
}

}  // namespace longhaul
