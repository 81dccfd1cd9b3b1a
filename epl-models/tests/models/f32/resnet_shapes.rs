//! The shapes of known models: parameters, segments, features.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use epl_core::Model;
use epl_core::testing::run;
use epl_models::ResNetConfig;

/// Counts elements without drawing them, those of running statistics left out.
#[derive(Default)]
struct Count {
    path: Vec<String>,
    elements: usize,
}

impl ModuleVisitor for Count {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.last().is_none_or(|name| !name.starts_with("running_")) {
            self.elements += param.lazy_shape().num_elements();
        }
    }
}

#[test]
fn known_models_have_the_published_numbers_of_parameters() {
    let published = [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
    ];
    run((1, 1, 1), |epl| {
        for (name, expected) in published {
            let mut count = Count::default();
            ResNetConfig::preset(name, 1000)?.init(epl.place()).visit(&mut count);
            assert_eq!(count.elements, expected, "{name}");
        }
        Ok(())
    });
}

#[test]
fn segments_are_named_for_every_parameter() {
    run((1, 1, 1), |epl| {
        let built = epl.build(|at| ResNetConfig::tiny(5).init(at))?;
        assert_eq!(built.model().segments(), 5);
        let segments = |name: &str| built.plan().record(name).map(|record| record.segments.clone());
        assert_eq!(segments("backbone.stem.convolution.weight"), Some(vec![0]));
        assert_eq!(segments("backbone.stem.norm.running_mean"), Some(vec![0]));
        assert_eq!(segments("backbone.stages.0.layers.0.parts.1.norm.gamma"), Some(vec![1]));
        assert_eq!(segments("backbone.stages.2.layers.0.shortcut.convolution.weight"), Some(vec![3]));
        assert_eq!(segments("class_layer.bias"), Some(vec![4]));
        Ok(())
    });
}

#[test]
fn images_become_features_and_logits() {
    run((1, 1, 1), |epl| {
        let built = epl.build(|at| ResNetConfig::tiny(5).init(at))?;
        let pixels = || Tensor::<4>::ones([2, 3, 33, 20], epl.place().device());
        let model = built.model();
        assert_eq!(model.backbone.enter(pixels()).dims(), [2, 16, 9, 5]);
        assert_eq!(model.backbone.forward(pixels()).dims(), [2, 64]);
        assert_eq!(model.forward(pixels()).dims(), [2, 5]);
        let grey = Tensor::<4>::ones([2, 1, 33, 20], epl.place().device());
        let error = epl_comm::catch(|| model.forward(grey)).unwrap_err().to_string();
        assert!(error.contains("of 3 input channels got an input of [2, 1, 33, 20], which has 1"), "{error}");
        let error = epl_comm::catch(|| ResNetConfig::tiny(0).init(epl.place())).unwrap_err().to_string();
        assert!(error.contains("`classes` is or has 0"), "{error}");
        Ok(())
    });
}
